"""Parking: backlogs that can't go move to queues of their own, and come back when they can."""
