class StepLR:
    def __init__(self, optimizer, step_size):
        self.last = 0

    def step(self):
        self.last += 1

    def state_dict(self):
        return {"last": self.last}

    def load_state_dict(self, state):
        self.last = state["last"]
