package i18n_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/espimage"
	"fleetd/fleet/espimage/esptest"
	"fleetd/fleet/firmware"
	"fleetd/web/i18n"
)

// The fault of a file reads as a sentence in both languages, with addresses and bytes in
// hexadecimal.
func TestFaultsOfFiles(t *testing.T) {
	app := esptest.App{Size: 100_000}.Bytes()
	damaged := slices.Clone(app)
	damaged[50_000] ^= 1
	chip := slices.Clone(app)
	chip[12] = 0x77
	merged := esptest.Merged(app, esptest.Partitions, 0)
	merged[0x20000+50_000] ^= 1
	tests := []struct {
		name, en, zh string
		file         []byte
	}{
		{"empty", "The file is empty.", "文件为空。", nil},
		{"short", "The file has 4 bytes; an app image has at least 288.", "文件只有 4 字节，应用镜像至少有 288 字节。",
			[]byte("\xe9abc")},
		{"begin", "The file begins with the byte 0x61; an app image begins with 0xe9.",
			"文件的第一个字节是 0x61，应用镜像以 0xe9 开头。", bytes.Repeat([]byte("a"), 400)},
		{"chip", "The image is for a chip with the unknown id 0x77.",
			"镜像适用于 ID 为 0x77 的芯片，fleetd 不认识此芯片。", chip},
		{"cut", "The file was cut off after 50,000 bytes; the image needs at least 99,888; download or build it again.",
			"文件在 50,000 字节处结束，而镜像至少需要 99,888 字节；文件被截断，请重新下载或构建。", app[:50_000]},
		{"damaged", "The checksum is 0x96, but the data gives 0x97; the file is damaged.",
			"记录的校验和是 0x96，由数据算出的是 0x97；文件已损坏。", damaged},
		{"in a merged binary", `This is a merged binary, but the application in its partition "ota_0" at 0x20000 cannot be used: ` +
			"the checksum is 0x96, but the data gives 0x97; the file is damaged.",
			"这是合并固件，其中位于 0x20000 的分区“ota_0”内的应用程序无法使用：记录的校验和是 0x96，由数据算出的是 0x97；文件已损坏。", merged},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := espimage.Parse(bytes.NewReader(tt.file), int64(len(tt.file)))
			fault, ok := errors.AsType[*espimage.Fault](err)
			if !ok {
				t.Fatalf("%v, want a fault", err)
			}
			r := firmware.FaultReason(fault)
			e := &fleet.Error{Kind: fleet.ErrInvalid, Code: r.Code, Params: r.Params}
			for lang, want := range map[i18n.Lang]string{i18n.English: tt.en, i18n.Chinese: tt.zh} {
				if got := i18n.Error(lang, time.UTC, e); got != want {
					t.Errorf("in %s: %q, want %q", lang, got, want)
				}
			}
		})
	}
}
