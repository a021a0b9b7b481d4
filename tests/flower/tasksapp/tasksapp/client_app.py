"""Clients of every task. Which one a message is for stands in the message."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from propfair.flower import client_app
from propfair.flower.whole import Data
from tests.tasks.scenes import SCENES, Scene

TASK = "task"  # the key of the task's name in the record of the same name


def app_of(scene: Scene) -> ClientApp:
    """The client program for a task."""

    def data(context: Context) -> Data:
        return scene.split_clients()[int(context.node_config["partition-id"])]

    return client_app(scene.module, data, task=scene.task, loss=scene.options.get("loss"), collate=scene.collate)


class EveryTask(ClientApp):
    """Hands a message to the app of its task."""

    def __call__(self, message: Message, context: Context) -> Message:
        return app_of(SCENES[str(message.content[TASK][TASK])])(message, context)


app = EveryTask()
