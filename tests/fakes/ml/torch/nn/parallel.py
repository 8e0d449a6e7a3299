class DistributedDataParallel:
    def __init__(self, module):
        self.module = module

    def __call__(self, batch):
        return self.module(batch)

    def parameters(self):
        return self.module.parameters()
