"""Talk to a server from outside: what the command line and Python programs use.

    from gpu_scheduler import Client

    client = Client()
    job = client.submit(["python", "train.py"], gpus=2)
    print(job.result())

Only the standard library is used, and as little of it as possible, so that a command starts fast.
"""
