"""The OpenEnv server of the BlackJack environment."""
