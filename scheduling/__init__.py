"""Scheduling: who runs next, and what the next step computes.

Plain synchronous values and machines.  Nothing here awaits, reads a clock, logs, counts metrics or
draws a random number.  The scheduler never sees a tree node: of the cache it knows the values that
transactions and receipts carry.
"""
