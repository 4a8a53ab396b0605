"""Files of others: which column is which and what it holds, times in all common formats, limits on every reader.

files, sandbox            atomic writes and our own messages for file errors; a child process with limits
tables, spreadsheets      CSV, Parquet and Excel, row by row
column_names, columns     which column is which, and what its cells are
times                     times in all common formats
notices                   what an import accepted but reports
"""
