"""What can go wrong on the way to ``torch.fx`` and back."""


class FxError(ValueError):
    """A graph that cannot be written as asked, or run: what failed, the value, the way out."""
