"""What the IR can say: graph, task, loop, schedule and cuda, one package each."""
