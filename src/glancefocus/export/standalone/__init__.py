"""What an exported folder's predict.py is put together of: these modules need numpy, Pillow and one runtime, nothing of ours."""
