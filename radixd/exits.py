"""With what code the command ends; docs/settings.md says the same to operators."""

EXIT_OK = 0
EXIT_FAILURE = 1
"""A bug, or a command that could not do its work."""
EXIT_SETTINGS = 2
EXIT_WORKER = 3
"""The worker cannot start or be brought back: the model is missing, broken or too large."""
EXIT_ADDRESS = 4
"""The address cannot be listened on."""
