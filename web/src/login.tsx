// Asks for a token where the connection alone does not say who looks, and exchanges it for a cookie.
import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { asError, me, needsLogin } from "./api";
import { notify } from "./components";

const SESSION = "/api/v1/session";

export function Login(): JSX.Element {
  const field = useRef<HTMLInputElement>(null);
  const [problem, setProblem] = useState("");
  const enter = async (event: Event): Promise<void> => {
    event.preventDefault();
    const token = field.current?.value.trim() ?? "";
    if (field.current) field.current.value = "";
    try {
      const response = await fetch(SESSION, { method: "POST", credentials: "same-origin", headers: { authorization: `Bearer ${token}` } });
      if (!response.ok) throw await asError(response);
      needsLogin.value = false;
    } catch (error) {
      setProblem(error instanceof Error ? error.message : "the server could not be reached");
    }
  };
  return (
    <section class="card narrow">
      <h1>Who are you?</h1>
      <form onSubmit={(event) => void enter(event)}>
        <label>
          Token
          <input ref={field} type="password" autocomplete="off" required />
        </label>
        {problem ? (
          <p class="note note-bad" role="alert">
            {problem}
          </p>
        ) : null}
        <button type="submit" class="primary">
          Log in
        </button>
      </form>
      <h2>Without a token</h2>
      <p>The server knows callers on its own machine. From another machine, forward a port through ssh; then you are logged in as your own user:</p>
      <pre tabIndex={0}>{`ssh -L ${location.port || "8080"}:127.0.0.1:${location.port || "8080"} ${location.hostname}`}</pre>
    </section>
  );
}

// Only callers with a token have a session to end.
export function Logout(): JSX.Element | null {
  if (!me.value?.via) return null;
  const leave = async (): Promise<void> => {
    try {
      const response = await fetch(SESSION, { method: "DELETE", credentials: "same-origin" });
      if (!response.ok) throw await asError(response);
      me.value = null;
      location.reload();
    } catch (error) {
      notify(error instanceof Error ? error.message : "the server could not be reached", { bad: true });
    }
  };
  return (
    <button type="button" class="small" onClick={() => void leave()}>
      Log out
    </button>
  );
}
