"""The client's side of environments: servers as subprocesses, and pooled sessions on them."""
