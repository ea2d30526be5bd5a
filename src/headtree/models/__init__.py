"""Look inside a model: load it, watch its attention, and trace its forward pass.

`view.ModelView` is the entry point. `source` loads models, `inputs` turns texts and images into arguments, `facts`
reads configurations, `register` holds attention that users describe, `watching` captures attention calls, `graph`
reads weights and the residual stream off a traced forward pass, and `bundled` has the two demo networks.
Outside this package, only the training in `study` imports transformers.
"""
