"""What can be wrong with text.

::

    TextError           the caller's text, or the file, is at fault; the message says what
    ├─ TemplateError    the chat template refuses the messages, or is broken
    └─ TokenizerError   a tokenizer file cannot be read
"""


class TextError(ValueError):
    """The text cannot be encoded."""


class TemplateError(TextError):
    """The chat template refuses the messages, or is broken."""


class TokenizerError(TextError):
    """A tokenizer file is missing or unreadable."""
