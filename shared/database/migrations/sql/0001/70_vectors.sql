-- Vectors of the semantic index. pgvector is needed by nothing else: without it the table is absent and semantic recall
-- says that it is unavailable.
DO $$
BEGIN
  IF EXISTS (SELECT 1 FROM pg_available_extensions WHERE name = 'vector') THEN
    CREATE EXTENSION IF NOT EXISTS vector;
    CREATE TABLE memory_chunks (
      profile          text NOT NULL,
      namespace        text NOT NULL,
      source_id        text NOT NULL,
      ordinal          int NOT NULL,
      generation       bigint NOT NULL,
      locator          text NOT NULL,
      passage_id       text NOT NULL,
      start_byte       int NOT NULL,
      end_byte         int NOT NULL,
      text             text NOT NULL,
      embedding        halfvec NOT NULL,
      PRIMARY KEY (profile, namespace, source_id, ordinal)
    );
  END IF;
EXCEPTION WHEN insufficient_privilege THEN
  RAISE NOTICE 'the vector extension may not be created by this role: semantic recall stays unavailable';
END $$;
