"""What a message costs a consumer: this SDK beside plain aio-pika and pika."""
