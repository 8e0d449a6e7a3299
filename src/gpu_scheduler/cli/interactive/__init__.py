"""Commands with a terminal: shell, attach, notebooks, editors and the live view."""
