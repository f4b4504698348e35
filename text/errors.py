"""What can be wrong with text, and whose fault it is.

::

    TextError           the text that was given cannot be encoded
    ├─ TemplateError    the chat template refuses the messages, fails on them, or is broken
    └─ TokenizerError   a tokenizer file cannot be read
"""


class TextError(ValueError):
    """The text cannot be encoded; the message says where and why, for whoever sent it."""


class TemplateError(TextError):
    """The chat template refuses the messages, fails on them, or is itself broken."""


class TokenizerError(TextError):
    """A tokenizer file is missing or unreadable; the message names it."""
