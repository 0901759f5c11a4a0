"""The offline model: an OpenAI-compatible server that answers by simple rules, for a first chat, tests and benchmarks.

Run it as its own process: ``python -m producer.dev.offline --port 8080``. It serves ``/v1/chat/completions`` and
``/v1/responses`` (streamed and whole, with tools, usage and JSON Schemas), ``/v1/embeddings``, ``/v1/models`` and
``/healthz``; it refuses what the real service refuses, above all a tool call without its result. Answers depend on the
conversation alone: equal prompts get equal answers.

**Memory.** It understands some things that users say of themselves ("my favourite colour is teal", "I live in Oslo").
A schema with ``facts`` of ``subject``, ``statement`` and ``quote`` gets those in the last user message, any other schema
the least value of each type. A question is answered from what the conversation says, then from recalled passages: a
JSON array at the end of an earlier user message whose objects have a ``citation`` ``memory:N``, which the answer names,
and a ``content.text``. What neither says it does not know.

**Directives.** A test says what it wants in the last user message: ``[[offline: {"tokens": 40, "delay_ms": 50}]]``.
:class:`~producer.dev.offline.directive.Directive` lists the fields; an unknown one is refused with 400. The text
around the directive is answered as always. A directive is for chats alone unless its ``on`` says otherwise.

**Watching and holding.** Every call is in a ledger, named by its ``prompt_cache_key`` (else ``user``), its *session*; its
``route`` is chat, structured or embeddings::

    GET  /admin/calls?session=&limit=100      counts by state, and the newest calls, oldest first
    GET  /admin/wait?calls=2&state=started&session=&timeout=10
                                              answers when that many calls are there; 504 with the counts when they are not
    POST /admin/hold    {"session": null, "after_tokens": 0}   from now on calls stop after so many tokens
                                              (0: before the response's headers), those under way too
    POST /admin/release {"session": null, "count": null}       lets all go on, or only the ``count`` held longest
    POST /admin/reset                         releases, forgets calls and fault counters

A call is ``running`` or ``held``, then ``finished``, ``failed`` (a fault, on purpose) or ``disconnected`` (the client
left). ``state=started`` counts all of them, ``ended`` the last three. Refused requests are counted apart.

Reading order: ``requests`` (what is taken) · ``directive`` · ``rules`` (what is answered: ``facts``, ``words``,
``recollection``, ``filling``) · ``wire`` (how it looks) · ``responses`` · ``vectors`` · ``ledger`` · ``answering`` (when
it is sent, and what goes wrong on purpose) · ``server``.
"""
