package api

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/espimage"
	"fleetd/fleet/espimage/esptest"
)

func TestImageLayout(t *testing.T) {
	w := newWorld(t)
	app := esptest.App{Chip: "esp32", FlashSize: 2, Version: "5.6.7"}
	csv, err := os.ReadFile("../../firmware/partitions/4mb.csv")
	if err != nil {
		t.Fatal(err)
	}
	i := decode[imageView](t, w.upload(t, "/images", "application/octet-stream", bytes.NewReader(app.Bytes())), 201)
	path := "/images/" + i.SHA256 + "/layout"
	if p := w.get(t, path).problem(t); p.Status != http.StatusNotFound {
		t.Errorf("%+v", p)
	}
	files := map[string][]byte{"bootloader/bootloader.bin": app.Bootloader(),
		"partition_table/partition-table.bin": esptest.Table(esptest.LayOut(string(csv), 0x8000)),
		"flasher_args.json": []byte(
			`{"flash_files":{"0x1000":"bootloader/bootloader.bin","0x8000":"partition_table/partition-table.bin","0x40000":"app.bin"},"app":{"file":"app.bin"}}`)}
	got := decode[layoutView](t, w.putFiles(t, path, files), 200)
	if len(got.Parts) != 4 || got.Parts[3].Kind != espimage.PartApp || got.Parts[3].Offset != 0x40000 ||
		got.Parts[3].SHA256 != i.SHA256 || got.FlashSize != 4<<20 {
		t.Errorf("%+v", got)
	}
	if again := decode[layoutView](t, w.get(t, path), 200); len(again.Parts) != 4 {
		t.Errorf("%+v", again)
	}
	if p := w.putFiles(t, path, map[string][]byte{"bootloader.bin": []byte("\xe9nothing")}).problem(t); p.Status != 422 ||
		p.Detail == "" {
		t.Errorf("%+v", p)
	}
	if p := w.putFiles(t, path, nil).problem(t); p.Status != 422 || p.Code != "file_missing" {
		t.Errorf("%+v", p)
	}
	if p := w.putFiles(t, "/images/"+strings.Repeat("0", 64)+"/layout", files).problem(t); p.Status != 404 {
		t.Errorf("%+v", p)
	}
}

// The problem of a merged binary with unusable parts has a code, and English text.
func TestLayoutProblem(t *testing.T) {
	w := newWorld(t)
	table := append([]esptest.Partition{{Label: "x", Type: 1, Subtype: 0x82, Offset: 0x1000, Size: 0xFFFFF000}},
		esptest.Partitions...)
	i := decode[imageView](t, w.upload(t, "/images", "application/octet-stream",
		bytes.NewReader(esptest.Merged(esptest.App{}.Bytes(), table, 0))), 201)
	got := decode[layoutView](t, w.get(t, "/images/"+i.SHA256+"/layout"), 200)
	if want := `the partition "x" extends to 0x100000000, beyond the flash of any board`; want !=
		got.Problem || got.ProblemCode != "image_partition_table" || got.ProblemParams["case"] != "beyond_flash" ||
		got.ProblemParams["label"] != "x" || got.ProblemParams["end_hex"] != float64(0x100000000) {
		t.Errorf("%+v, want %q", got, want)
	}
}

func (w *world) putFiles(t *testing.T, path string, files map[string][]byte) reply {
	t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	for name, data := range files {
		part, err := form.CreateFormFile("file", name)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = part.Write(data)
	}
	form.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, w.URL+prefix+path, &body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+w.tokens[fleet.RoleOperator])
	req.Header.Set("Content-Type", form.FormDataContentType())
	resp, err := w.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	w.conforms(t, http.MethodPut, path, resp, data)
	return reply{resp.StatusCode, resp.Header, data}
}
