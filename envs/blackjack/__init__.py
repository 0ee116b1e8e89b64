"""BlackJack for language models: text in, text out, as an OpenEnv environment with an exact solver."""
