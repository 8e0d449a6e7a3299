from torch.numbers import Tensor


class Module:
    def __init__(self):
        self.weight = Tensor(0)

    def to(self, device):
        return self

    def parameters(self):
        return [self.weight]

    def state_dict(self):
        return {"weight": Tensor(self.weight.value)}

    def load_state_dict(self, state):
        self.weight.value = state["weight"].value


class Linear(Module):
    def __init__(self, inputs, outputs):
        super().__init__()

    def __call__(self, batch):
        return Tensor(1.0 / (1 + self.weight.value))
