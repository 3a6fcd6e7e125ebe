// Requests to the service. The session is a cookie that scripts cannot read; a change carries the CSRF value beside it.
export const session = { signedIn: false, name: "", role: "", csrf: "", provider: null };

export class Failure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let onSignedOut = () => {};
export function whenSignedOut(call) { onSignedOut = call; }

export async function ask(path, { method = "GET", body, signal } = {}) {
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET" && session.csrf) headers["X-CSRF-Token"] = session.csrf;
  let answer;
  try {
    answer = await fetch(path, { method, headers, signal, cache: "no-store", credentials: "same-origin",
      body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(0, "the service does not answer");
  }
  let content = null;
  try { content = await answer.json(); } catch { /* an answer without JSON has its status only */ }
  if (answer.status === 401 && session.signedIn) {
    take({ signed_in: false });
    onSignedOut();
  }
  if (!answer.ok) throw new Failure(answer.status, detailOf(content) || `HTTP ${answer.status}`);
  return content;
}

function detailOf(content) {
  const detail = content && content.detail;
  if (typeof detail === "string") return detail;
  if (Array.isArray(detail)) return detail.map((each) => each.msg || "").join("; ");
  return "";
}

function take(found) {
  session.signedIn = found.signed_in === true;
  session.name = found.name || "";
  session.role = found.role || "";
  session.csrf = found.csrf || "";
  session.provider = found.provider || session.provider;
  return session.signedIn;
}

export const restore = async () => take(await ask("/api/v1/session"));
export const signIn = async (token) => take(await ask("/api/v1/session", { method: "POST", body: { token } }));
export async function signOut() {
  await ask("/api/v1/session", { method: "DELETE" });
  take({ signed_in: false });
}

const RANKS = ["viewer", "approver", "admin"];
export const may = (role) => RANKS.indexOf(session.role) >= RANKS.indexOf(role);

// One stream of ticks. The browser connects again by itself; a session that ended is found by asking.
export function listen({ onTick, onLost, onSignedOut: ended }) {
  const source = new EventSource("/api/v1/events");
  source.addEventListener("tick", (event) => onTick(JSON.parse(event.data)));
  source.addEventListener("signed-out", ended);
  source.addEventListener("error", async () => {
    onLost();
    try {
      if (!(await restore())) ended();
      else if (source.readyState === EventSource.CLOSED) ended("again");
    } catch { if (source.readyState === EventSource.CLOSED) ended("again"); }
  });
  return () => source.close();
}
