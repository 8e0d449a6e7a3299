// Asks for a token where the connection alone does not say who looks.
import type { JSX } from "preact";

export function Login(): JSX.Element {
  return (
    <section class="card narrow">
      <h1>Who are you?</h1>
      <p>
        The server knows callers on its own machine. From another machine, forward a port through ssh; then you are logged in as your own user:
      </p>
      <pre tabIndex={0}>{`ssh -L ${location.port || "8080"}:127.0.0.1:${location.port || "8080"} ${location.hostname}`}</pre>
    </section>
  );
}
