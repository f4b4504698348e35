"""API: the daemon over HTTP.  Translates requests and answers; holds no state of its own."""
