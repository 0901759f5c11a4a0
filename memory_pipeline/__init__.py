"""What the agent remembers, in the order data flows.

committed records ─▶ ``activity`` (a finite pass admits intents) ─▶ ``remembering`` (extract ▸ check source ▸ merge ▸
conditional write) ─▶ ``store`` (authoritative documents, receipts) ─▶ ``index`` (chunks, embeddings) ─▶ ``recall`` (direct,
keyword, semantic; revalidated against the store; transient context of the next turn). ``namespaces`` says whose it is.
"""
