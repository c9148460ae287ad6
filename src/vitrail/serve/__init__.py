"""One model behind HTTP: a server that is proved equal to the command line, and hard to break."""
