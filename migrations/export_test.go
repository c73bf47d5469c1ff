package migrations

import "io/fs"

// Files returns the migrations, for tests that stop at one of them.
func Files() fs.FS { return files }
