package espimage_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fleetd/fleet/espimage"
	"fleetd/fleet/espimage/esptest"
)

func section(b []byte) *io.SectionReader {
	return io.NewSectionReader(bytes.NewReader(b), 0, int64(len(b)))
}

// pieces returns the files of a build of our firmware for a board with 8 MB of flash.
func pieces(t testing.TB, chip string, tableAt int64) espimage.Pieces {
	t.Helper()
	app := esptest.App{Chip: chip, FlashSize: 3, Size: 50_000}
	return espimage.Pieces{Bootloader: section(app.Bootloader()),
		Table: section(esptest.Table(ourTable(t, "8mb", tableAt))), TableOffset: tableAt,
		OTAData: section(esptest.Blank()), App: section(app.Bytes()), Chip: chip}
}

// ourTable returns the partition table of the firmware in this repository.
func ourTable(t testing.TB, flash string, at int64) []esptest.Partition {
	t.Helper()
	csv, err := os.ReadFile(filepath.Join("..", "..", "firmware", "partitions", flash+".csv"))
	if err != nil {
		t.Fatal(err)
	}
	return esptest.LayOut(string(csv), uint32(at))
}

func layoutText(l *espimage.Layout) string {
	var b strings.Builder
	for _, p := range l.Parts {
		fmt.Fprintf(&b, "%s %s %#x %d\n", p.Kind, p.Label, p.Offset, p.Data.Size())
	}
	return b.String()
}

func TestLayoutOfABuild(t *testing.T) {
	for _, tt := range []struct {
		chip     string
		tableAt  int64
		loaderAt string
		otaAt    string
	}{
		{"esp32", 0x8000, "0x1000", "0xf000"},
		{"esp32s3", 0x8000, "0x0", "0xf000"},
		{"esp32c3", 0x10000, "0x0", "0x17000"},
		{"esp32p4", 0x10000, "0x2000", "0x17000"},
	} {
		t.Run(tt.chip, func(t *testing.T) {
			p := pieces(t, tt.chip, tt.tableAt)
			l, err := p.Layout()
			if err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprintf("bootloader  %s %d\npartition_table  %#x 3072\notadata otadata %s 8192\napp ota_0 0x40000 %d\n",
				tt.loaderAt, p.Bootloader.Size(), tt.tableAt, tt.otaAt, p.App.Size())
			if got := layoutText(l); got != want {
				t.Errorf("the layout is\n%s\nwant\n%s", got, want)
			}
			if l.FlashSize != 8<<20 || l.Chip != tt.chip {
				t.Errorf("%+v", l)
			}
		})
	}
}

func TestLayoutMakesOTAData(t *testing.T) {
	p := pieces(t, "esp32s3", 0x8000)
	p.OTAData = nil
	l, err := p.Layout()
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range l.Parts {
		if part.Kind != espimage.PartOTAData {
			continue
		}
		b, err := io.ReadAll(part.Data)
		if err != nil || !bytes.Equal(b, esptest.Blank()) {
			t.Errorf("%d bytes that are not erased flash: %v", len(b), err)
		}
		return
	}
	t.Error("there is no otadata")
}

func TestLayoutFaults(t *testing.T) {
	big := esptest.App{Size: 4 << 20, FlashSize: 3}
	chosen := esptest.Blank()
	chosen[0] = 1
	damagedLoader := esptest.App{FlashSize: 3}.Bootloader()
	damagedLoader[500] ^= 1
	for _, tt := range []struct {
		name    string
		change  func(*espimage.Pieces)
		reason  espimage.Reason
		message string
	}{
		{"no bootloader", func(p *espimage.Pieces) { p.Bootloader = nil }, espimage.ReasonBootloader, "missing"},
		{"no table", func(p *espimage.Pieces) { p.Table = nil }, espimage.ReasonPartitions, "missing"},
		{"another chip's bootloader", func(p *espimage.Pieces) {
			p.Bootloader = section(
				esptest.App{Chip: "esp32c3"}.Bootloader())
		}, espimage.ReasonBootloader, "esp32c3"},
		{"damaged bootloader", func(p *espimage.Pieces) { p.Bootloader = section(damagedLoader) }, espimage.ReasonBootloader,
			"checksum"},
		{"an application as bootloader", func(p *espimage.Pieces) { p.Bootloader = p.App }, espimage.ReasonBootloader,
			"is_app"},
		{"no image as bootloader", func(p *espimage.Pieces) { p.Bootloader = section(make([]byte, 5000)) },
			espimage.ReasonBootloader, "byte_hex=0x0"},
		{"bootloader into the table", func(p *espimage.Pieces) {
			p.Bootloader = section(esptest.App{LoaderSize: 40_000, FlashSize: 3}.Bootloader())
		}, espimage.ReasonLayout, "0x8000"},
		{"flash too small", func(p *espimage.Pieces) { p.Bootloader = section(esptest.App{FlashSize: 2}.Bootloader()) },
			espimage.ReasonLayout, "flash_mib=4"},
		{"application too large", func(p *espimage.Pieces) { p.App = section(big.Bytes()) }, espimage.ReasonLayout, "ota_0"},
		{"otadata that chooses", func(p *espimage.Pieces) { p.OTAData = section(chosen) }, espimage.ReasonOTAData,
			"not_initial"},
		{"otadata too large", func(p *espimage.Pieces) { p.OTAData = section(make([]byte, 9000)) }, espimage.ReasonOTAData,
			"9000"},
		{"table nowhere", func(p *espimage.Pieces) { p.TableOffset = 0x123 }, espimage.ReasonLayout, "0x123"},
		{"table that lies on its partitions", func(p *espimage.Pieces) { p.TableOffset = 0xC000 }, espimage.ReasonPartitions,
			`on_table at_hex=0x9000 end_hex=0xd000 label="nvs"`},
		{"data into an application", func(p *espimage.Pieces) { p.Data = []espimage.Piece{{0x41000, section([]byte("x"))}} },
			espimage.ReasonLayout, "0x41000"},
		{"data beyond its partition", func(p *espimage.Pieces) {
			p.Data = []espimage.Piece{{0x640000,
				section(make([]byte, 2<<20))}}
		}, espimage.ReasonLayout, "0x640000"},
		{"data twice", func(p *espimage.Pieces) {
			p.Data = []espimage.Piece{{0x640000, section([]byte("xy"))}, {0x640001, section([]byte("y"))}}
		}, espimage.ReasonLayout, "0x640001"},
		{"empty data", func(p *espimage.Pieces) { p.Data = []espimage.Piece{{0x640000, section(nil)}} },
			espimage.ReasonLayout, "data_empty"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := pieces(t, "esp32s3", 0x8000)
			tt.change(&p)
			_, err := p.Layout()
			if f := wantFault(t, err, tt.reason); !strings.Contains(f.Error(), tt.message) {
				t.Errorf("%v; want %s in it", f, tt.message)
			}
		})
	}
}

func TestTableFaults(t *testing.T) {
	app := esptest.Partition{Label: "ota_0", Subtype: 0x10, Offset: 0x20000, Size: 0x100000}
	data := func(label string, offset, size uint32) esptest.Partition {
		return esptest.Partition{Label: label, Type: 1, Subtype: 2, Offset: offset, Size: size}
	}
	for name, table := range map[string][]esptest.Partition{
		"overlap":             {data(`on_table at_hex=0x9000 end_hex=0xd000 label="nvs"`, 0x9000, 0x18000), app},
		"same place":          {data("a", 0x9000, 0x1000), data("b", 0x9000, 0x1000)},
		"on the table":        {data(`on_table at_hex=0x9000 end_hex=0xd000 label="nvs"`, 0x8000, 0x1000), app},
		"on the bootloader":   {data(`on_table at_hex=0x9000 end_hex=0xd000 label="nvs"`, 0, 0x1000), app},
		"one name twice":      {data(`on_table at_hex=0x9000 end_hex=0xd000 label="nvs"`, 0x9000, 0x1000), data(`on_table at_hex=0x9000 end_hex=0xd000 label="nvs"`, 0xA000, 0x1000)},
		"empty":               {data(`on_table at_hex=0x9000 end_hex=0xd000 label="nvs"`, 0x9000, 0), app},
		"unaligned":           {data(`on_table at_hex=0x9000 end_hex=0xd000 label="nvs"`, 0x9001, 0x1000), app},
		"unaligned app":       {{Label: "ota_0", Subtype: 0x10, Offset: 0x21000, Size: 0x10000}},
		"giant":               {data(`on_table at_hex=0x9000 end_hex=0xd000 label="nvs"`, 0x9000, 0xFFFFF000), app},
		"beyond the flash":    {data(`on_table at_hex=0x9000 end_hex=0xd000 label="nvs"`, 0xFFFFF000, 0x1000), app},
		"overlap by overflow": {data(`on_table at_hex=0x9000 end_hex=0xd000 label="nvs"`, 0x9000, 0x1000), data("x", 0xFFFFE000, 0x10000)},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := espimage.ParseTable(esptest.Table(table), 0x8000)
			wantFault(t, err, espimage.ReasonPartitions)
		})
	}
	for name, b := range map[string][]byte{"nothing": nil, "text": []byte(strings.Repeat("x", 100)),
		"too long": append(esptest.Table(esptest.Partitions), make([]byte, 4096)...)} {
		_, err := espimage.ParseTable(b, 0x8000)
		if wantFault(t, err, espimage.ReasonPartitions); name == "" {
			t.Error(name)
		}
	}
}

// TestMergedLayout splits the output of esptool's merge-bin.
func TestMergedLayout(t *testing.T) {
	for chip, at := range map[string]int{"esp32": 0x1000, "esp32s3": 0, "esp32p4": 0x2000} {
		t.Run(chip, func(t *testing.T) {
			app := esptest.App{Chip: chip, Size: 100_000}.Bytes()
			merged := esptest.Merged(app, esptest.Partitions, at)
			copy(merged[0x9000:], "somebody's Wi-Fi password") // nvs
			copy(merged[0xF000:], "radio")                     // phy_init
			l, err := mergedLayout(merged)
			if err != nil {
				t.Fatal(err)
			}
			loader := len(esptest.App{Chip: chip}.Bootloader())
			want := fmt.Sprintf("bootloader  %#x %d\npartition_table  0x8000 3072\notadata otadata 0xd000 8192\ndata phy_init 0xf000 5\napp ota_0 0x20000 %d\n",
				at, loader, len(app))
			if got := layoutText(l); got != want {
				t.Errorf("the layout is\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func mergedLayout(b []byte) (*espimage.Layout, error) {
	img, err := parse(b)
	if err != nil {
		return nil, err
	}
	return espimage.MergedLayout(bytes.NewReader(b), int64(len(b)), img)
}

func TestMergedLayoutFaults(t *testing.T) {
	app := esptest.App{Size: 100_000}.Bytes()
	hostile := append([]esptest.Partition{{Label: "x", Type: 1, Subtype: 0x82, Offset: 0x1000, Size: 0xFFFFF000}},
		esptest.Partitions...)
	later := append([]esptest.Partition{esptest.Partitions[4]}, esptest.Partitions[:4]...) // ota_1 comes first
	shifted := esptest.Merged(app, esptest.Partitions, 0x1000)
	copy(shifted[:0x1000], bytes.Repeat([]byte{0xFF}, 0x1000))
	for name, b := range map[string][]byte{"a table that covers everything": esptest.Merged(app, hostile, 0),
		"another slot": esptest.Merged(app, later, 0), "no bootloader where the chip looks": shifted} {
		t.Run(name, func(t *testing.T) {
			if _, err := parse(b); err != nil {
				t.Fatalf("the application itself: %v", err)
			}
			_, err := mergedLayout(b)
			var f *espimage.Fault
			if !errors.As(err, &f) || f.Case == "" {
				t.Errorf("%v, want a fault", err)
			}
		})
	}
	img, err := parse(app)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := espimage.MergedLayout(bytes.NewReader(app), int64(len(app)), img); err == nil {
		t.Error("an application image alone has a layout")
	}
}

func FuzzParseTable(f *testing.F) {
	f.Add(esptest.Table(esptest.Partitions), int64(0x8000))
	f.Add(esptest.Table(ourTable(f, "4mb", 0x10000)), int64(0x10000))
	f.Add(binary.LittleEndian.AppendUint32(bytes.Repeat([]byte{0xAA, 0x50, 0, 0}, 30), 7), int64(0))
	f.Fuzz(func(t *testing.T, b []byte, at int64) {
		if at < 0 || at > 0x20000 {
			return
		}
		table, err := espimage.ParseTable(b, at)
		if err != nil {
			return
		}
		taken := map[int64]bool{}
		for _, p := range table {
			if p.Offset < at+4096 || p.Size <= 0 || p.End() > 256<<20 || len(table) > 96 {
				t.Fatalf("%+v in a table at %#x", p, at)
			}
			for s := p.Offset / 4096; s < (p.End()+4095)/4096 && s < p.Offset/4096+100; s++ {
				if taken[s] {
					t.Fatalf("%+v lies on another", p)
				}
				taken[s] = true
			}
		}
	})
}

// FuzzMergedLayout checks that the parts lie within the file, in order and without overlap.
func FuzzMergedLayout(f *testing.F) {
	merged := esptest.Merged(esptest.App{Size: 1000}.Bytes(), esptest.Partitions, 0)
	f.Add(merged[0x8000:0x8C00])
	f.Add(esptest.Table(ourTable(f, "4mb", 0x8000)))
	f.Fuzz(func(t *testing.T, table []byte) {
		b := bytes.Clone(merged)
		copy(b[0x8000:0x9000], table)
		l, err := mergedLayout(b)
		if err != nil {
			return
		}
		end := int64(0)
		for _, p := range l.Parts {
			if p.Offset < end || p.Data.Size() <= 0 {
				t.Fatalf("%+v begins before %#x", p, end)
			}
			if _, err := io.Copy(io.Discard, p.Data); err != nil {
				t.Fatalf("%+v: %v", p, err)
			}
			end = p.End()
		}
	})
}
