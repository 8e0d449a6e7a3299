class Tensor:
    """One number, with the operations that the examples use."""

    def __init__(self, value):
        self.value = value

    def __sub__(self, other):
        return Tensor(self.value - other.value)

    def sum(self, dim=None, keepdim=False):
        return self

    def square(self):
        return Tensor(self.value * self.value)

    def mean(self):
        return self

    def backward(self):
        pass

    def item(self):
        return float(self.value)

    def cpu(self):
        return self

    def to(self, device):
        return self
