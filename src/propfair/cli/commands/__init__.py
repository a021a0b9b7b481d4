"""Sub-commands. Each file adds its own to the app; adding a command is adding a file."""
