from django.db import models


class Order(models.Model):
    id = models.CharField(max_length=40, primary_key=True)
    steps = models.JSONField(default=list)
    #: The largest x-dispatch-epoch that has written this order: a consumer with a smaller one is too late.
    epoch = models.BigIntegerField(default=0)
