"""`tgpu doctor`: checks of this machine, of the installation and of the server."""
