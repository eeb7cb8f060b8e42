"""Measuring this machine: a profile of its host and one of its GPU, for ``--host`` and ``--gpu``."""
