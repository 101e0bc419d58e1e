"""Where the store's files are: a folder or an object store, and the disks of nodes."""
