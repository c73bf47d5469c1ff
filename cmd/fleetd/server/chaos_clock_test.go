package server

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"unsafe"
)

// The test needs a wrong clock in fleetd, whose code has no replaceable clock.
// Go reads the clock through a function that the kernel maps into each process,
// the vDSO, and no library can intercept that. The test binary that runs as
// fleetd overwrites that function with one that adds the seconds from a file
// shared with the test. PostgreSQL's clock stays right.

// clockFile is the environment variable with the path of the clock file.
const clockFile = "FLEETD_TEST_CLOCK"

// canSetClock returns the reason for which this machine cannot set the clock;
// the code below is for amd64.
func canSetClock(*chaosWorld) string {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return "Linux on amd64"
	}
	return ""
}

// setClock moves the wall clock of the process that decides by the step's seconds, and makes devices
// connect under it.
func setClock(w *chaosWorld, step chaosStep) error {
	w.clockSet = true
	p := w.leader()
	if p == nil {
		p = w.nodes[0]
	}
	if err := w.writeClock(p, int64(step.clock.Seconds())); err != nil {
		return err
	}
	return resetNetwork(w, step)
}

// rightClock undoes the step.
func rightClock(w *chaosWorld, _ chaosStep) error {
	for _, p := range w.nodes {
		if err := w.writeClock(p, 0); err != nil {
			return err
		}
	}
	return nil
}

func (w *chaosWorld) writeClock(p *chaosProcess, seconds int64) error {
	return writeClock(p.clock(), seconds)
}

// writeClock keeps the file, which processes have mapped.
func writeClock(name string, seconds int64) error {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(seconds)), 0)
	return err
}

// followClock makes this process's clock follow the file until the process
// ends.
func followClock(name string) error {
	file, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	offset, err := syscall.Mmap(int(file.Fd()), 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return err
	}
	memory, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	at, err := clockFunction(memory)
	if err != nil {
		return err
	}
	_, err = memory.WriteAt(offsetClock(uintptr(unsafe.Pointer(&offset[0]))), at)
	return err
}

// offsetClock is clock_gettime(clock, time) in machine code: the system call,
// which for the wall clock, number 0, adds the seconds at the address.
func offsetClock(address uintptr) []byte {
	code := []byte{
		0xb8, 0xe4, 0, 0, 0, // mov eax, 228
		0x0f, 0x05, // syscall
		0x85, 0xff, // test edi, edi
		0x75, 0x10, // jnz to the end
		0x48, 0xba, // mov rdx, address
	}
	code = binary.LittleEndian.AppendUint64(code, uint64(address))
	return append(code,
		0x48, 0x8b, 0x12, // mov rdx, [rdx]
		0x48, 0x01, 0x16, // add [rsi], rdx
		0xc3, // ret
	)
}

// clockFunction finds clock_gettime in this process's memory.
func clockFunction(memory *os.File) (int64, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		if !strings.Contains(line, "[vdso]") {
			continue
		}
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
			return 0, err
		}
		image := make([]byte, to-from)
		if _, err := memory.ReadAt(image, from); err != nil {
			return 0, err
		}
		object, err := elf.NewFile(bytes.NewReader(image))
		if err != nil {
			return 0, err
		}
		symbols, err := object.DynamicSymbols()
		if err != nil {
			return 0, err
		}
		for _, s := range symbols {
			if s.Name == "__vdso_clock_gettime" {
				return from + int64(s.Value), nil
			}
		}
	}
	return 0, fmt.Errorf("this kernel maps no clock_gettime into processes")
}
