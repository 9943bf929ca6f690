"""`bmq shell`: the commands of the original's bmqtool, and its automatic producer and consumer."""
