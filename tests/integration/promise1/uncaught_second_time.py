"""An uncaught double backward: the traceback on stderr and exit status 1."""

from _show import small

x = small(3).requires_grad_()


class Trainer:
    def __init__(self):
        self.state = x.exp()

    def step(self, number):
        loss = (self.state * x).sum()
        print("step", number, loss.item().hex())
        loss.backward()


trainer = Trainer()
for number in range(3):
    trainer.step(number)
