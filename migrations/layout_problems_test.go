package migrations_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetd/fleet"
	"fleetd/migrations"
	"fleetd/web/i18n"
)

// A problem that was stored as text stays readable.
func TestLayoutProblemsBecomeCodes(t *testing.T) {
	db := upTo(t, 17)
	const text = "two parts lie on each other: one reaches to 0x9000, the next begins at 0x8000"
	good, bad := strings.Repeat("a", 64), strings.Repeat("b", 64)
	for _, image := range []string{good, bad} {
		exec(t, db, `INSERT INTO images (sha256, size, file_name, board, notes, chip, version, project, idf_version, elf_sha256,
				compiled_at, uploaded_by, created_at)
			VALUES ($1, 1, '', '', '', 'esp32', '1.0', 'p', 'v6', '', '', $2, now())`, image, anActor)
	}
	exec(t, db, `INSERT INTO image_layouts (image, problem, added_by, added_at) VALUES ($3, '', $1, now()), ($4, $2, $1, now())`,
		anActor, text, good, bad)
	if err := migrations.Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	const problemOf = `SELECT problem_code, problem_params FROM image_layouts WHERE image = $1`
	if got := reasonAt(t, db, problemOf, good); got.Code != "" || got.Params != nil {
		t.Errorf("a layout without a problem has %v", got)
	}
	got := reasonAt(t, db, problemOf, bad)
	if diff := cmp.Diff(fleet.Because("legacy", "detail", text), got); diff != "" {
		t.Error(diff)
	}
	if shown := i18n.Detail("error.code.", got); shown != text {
		t.Errorf("it reads %q", shown)
	}
}
