"""The client of a server: the Python API, which the command line uses too.

    from gpu_scheduler import Client

    client = Client()
    job = client.submit(["python", "train.py"], gpus=2)
    print(job.result())

Only the standard library is used, and as little of it as possible, so that a command starts fast.
`client` and `async_client` are public; `requests`, `http1` and `websocket` are their protocol
without I/O. What prepares a submission on the user's machine (environment, jobs.txt, model sizes,
snapshots of code) lives here as well; what parses command lines or prints belongs to `cli`.
"""
