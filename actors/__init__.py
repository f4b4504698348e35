"""Actors: thin asynchronous shells around the pure machines, and the `Engine` that ties them.

An actor owns its machine and its mailbox and nothing else.  It takes what the mailbox holds,
calls the machine once, and performs what the machine returned, without suspending in between.
"""
