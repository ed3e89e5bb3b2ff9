def print_loops(*a): raise NotImplementedError
def parse_loops(*a): raise NotImplementedError
