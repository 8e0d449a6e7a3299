from pathlib import Path


class Callback:
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        pass

    def on_save_checkpoint(self, trainer, module, checkpoint):
        pass

    def on_exception(self, trainer, module, exception):
        pass


class ModelCheckpoint(Callback):
    def __init__(self, *, dirpath, filename, every_n_train_steps, save_top_k, **_):
        self.path = Path(dirpath) / f"{filename}.ckpt"
        self.every = every_n_train_steps

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step % self.every == 0:
            trainer.save_checkpoint(self.path)
