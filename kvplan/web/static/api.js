// Asking the API. A refusal is an Error whose message is the one sentence of its problem+json.

export async function ask(name, question, signal) {
  const response = await fetch(`api/${name}`, {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(question), signal,
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.detail);
  return answer;
}

export async function list(name) {
  const response = await fetch(`api/${name}`);
  return response.json();
}
