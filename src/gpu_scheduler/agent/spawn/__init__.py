"""Starting processes: the fork server, pre-forked children, and a child until its exec."""
