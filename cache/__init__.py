"""The prefix cache: what is cached, who uses it, what may go.

Plain synchronous values and machines.  Nothing here awaits, reads a clock, logs, counts metrics or
draws a random number; nothing here knows of queues, workers or HTTP.
"""
