"""Images fitted by LBFGS, whose closure runs forward and backward as often as it is asked to."""

import torch
from torch import nn

content, style = torch.rand(1, 3, 12, 12), torch.rand(1, 3, 12, 12)
layers = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(inplace=True), nn.Conv2d(6, 8, 3), nn.ReLU())
for p in layers.parameters():
    p.requires_grad_(False)


def gram(x):
    features = x.view(x.size(1), -1)
    return features @ features.t() / features.numel()


class Loss(nn.Module):
    def __init__(self, target, of):
        super().__init__()
        self.of = of
        self.target = of(target).detach()

    def forward(self, x):
        self.loss = nn.functional.mse_loss(self.of(x), self.target)
        return x


content_loss, style_loss = Loss(layers(content), lambda x: x), Loss(layers(style), gram)
model = nn.Sequential(layers, content_loss, style_loss)
image = content.clone().requires_grad_(True)
optimizer = torch.optim.LBFGS([image], lr=0.5, max_iter=6)
run = [0]
while run[0] <= 20:

    def closure():
        image.data.clamp_(0, 1)
        optimizer.zero_grad()
        model(image)
        score = content_loss.loss + 50 * style_loss.loss
        score.backward()
        run[0] += 1
        if run[0] % 7 == 0:
            print(
                "run {}: content {:4f} style {:4f}".format(
                    run, content_loss.loss.item(), style_loss.loss.item()
                )
            )
        return score

    optimizer.step(closure)
with torch.no_grad():
    image.clamp_(0, 1)
print(f"{image.mean():.5f}")
