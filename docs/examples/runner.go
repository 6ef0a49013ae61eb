// runner QMP-SOCKET QEMU [ARGUMENT]...: the first process of a VM's container, in Go with godbus (write-a-runner.md).
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	name        = "io.stelia.Isolation1"
	grace       = 25 * time.Second
	exitRefused = 69
	pidfdOpen   = 434 // the system call, on every architecture but alpha
)

// Vcpu is one entry of AttachVcpus.
type Vcpu struct {
	Index  uint32
	Thread int32
	Props  map[string]dbus.Variant
}

var (
	mutex    sync.Mutex // of children; it remains locked when the program ends
	children = map[int]*os.Process{}
)

// end kills the children that are left, and exits.
func end(code int) {
	mutex.Lock()
	for _, child := range children {
		child.Kill()
	}
	os.Exit(code)
}

func check(what string, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %s\n", what, text(err))
		end(exitRefused)
	}
}

func text(err error) string {
	var refused dbus.Error
	if errors.As(err, &refused) {
		return refused.Name + ": " + refused.Error()
	}
	return err.Error()
}

func start(command ...string) (*os.Process, dbus.UnixFD) {
	child := exec.Command(command[0], command[1:]...)
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	mutex.Lock()
	err := child.Start()
	if err == nil {
		children[child.Process.Pid] = child.Process
	}
	mutex.Unlock()
	check("start "+command[0], err)
	fd, _, errno := syscall.Syscall(pidfdOpen, uintptr(child.Process.Pid), 0, 0)
	if errno != 0 {
		check("pidfd_open", errno)
	}
	return child.Process, dbus.UnixFD(fd)
}

// reap ends the program as QEMU ends, whenever that is. PID 1 reaps orphans too.
func reap(qemu int) {
	var status syscall.WaitStatus
	for pid := 0; pid != qemu; {
		pid, _ = syscall.Wait4(-1, &status, 0, nil)
	}
	mutex.Lock()
	delete(children, qemu)
	mutex.Unlock()
	if status.Signaled() {
		end(128 + int(status.Signal()))
	}
	end(status.ExitStatus())
}

// uidOutside is this user's uid outside its user namespace, where the daemon is.
func uidOutside() string {
	file, err := os.Open("/proc/self/uid_map")
	check("open the uid map", err)
	defer file.Close()
	var inner, outer, count int
	for uid := os.Geteuid(); ; {
		_, err := fmt.Fscan(file, &inner, &outer, &count)
		check("read the uid map", err)
		if inner <= uid && uid < inner+count {
			return strconv.Itoa(outer + uid - inner)
		}
	}
}

func connect(daemon string) (*dbus.Conn, error) {
	bus, err := dbus.Dial("unix:path=" + daemon)
	if err != nil {
		return nil, err
	}
	if err := bus.Auth([]dbus.Auth{dbus.AuthExternal(uidOutside())}); err != nil {
		bus.Close()
		return nil, err
	}
	return bus, nil
}

// qmp runs these commands; the last one's answer goes to result.
func qmp(socket string, result any, commands ...string) error {
	connection, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer connection.Close()
	connection.SetDeadline(time.Now().Add(grace))
	out, in := json.NewEncoder(connection), json.NewDecoder(connection)
	if err := in.Decode(&struct{}{}); err != nil { // the greeting
		return err
	}
	for _, command := range append([]string{"qmp_capabilities"}, commands...) {
		if err := out.Encode(map[string]string{"execute": command}); err != nil {
			return err
		}
		var answer struct{ Return, Error json.RawMessage }
		for answer.Return == nil { // the others are events
			if err := in.Decode(&answer); err != nil {
				return err
			} else if answer.Error != nil {
				return fmt.Errorf("%s: %s", command, answer.Error)
			}
		}
		if err := json.Unmarshal(answer.Return, result); command != "qmp_capabilities" && err != nil {
			return err
		}
	}
	return nil
}

// vcpusOf are the vCPUs as AttachVcpus takes them. QEMU makes the socket while it starts.
func vcpusOf(socket string) []Vcpu {
	var cpus []struct {
		Index  uint32            `json:"cpu-index"`
		Thread int32             `json:"thread-id"`
		Props  map[string]uint32 `json:"props"`
	}
	deadline := time.Now().Add(30 * time.Second)
	err := qmp(socket, &cpus, "query-cpus-fast")
	for ; err != nil && time.Now().Before(deadline); err = qmp(socket, &cpus, "query-cpus-fast") {
		time.Sleep(100 * time.Millisecond)
	}
	check("ask QEMU", err)
	vcpus := []Vcpu{}
	for _, cpu := range cpus {
		props := map[string]dbus.Variant{}
		for key, number := range cpu.Props {
			props[key] = dbus.MakeVariant(number)
		}
		vcpus = append(vcpus, Vcpu{cpu.Index, cpu.Thread, props})
	}
	return vcpus
}

// VM is what is started once, however often the steps are repeated.
type VM struct {
	daemon, socket string
	command        []string
	anchorFD       dbus.UnixFD
	qemu           *os.Process
	qemuFD         dbus.UnixFD
}

// isolate does steps 2 to 6 and returns the VM's state. It may be repeated.
func (vm *VM) isolate() (state string, err error) {
	bus, err := connect(vm.daemon)
	if err != nil {
		return "", err
	}
	defer bus.Close()
	options := map[string]dbus.Variant{"anchor": dbus.MakeVariant(vm.anchorFD)}
	var path dbus.ObjectPath
	var cgroup string
	manager := bus.Object(name, "/io/stelia/Isolation1")
	registered := manager.Call(name+".Manager.RegisterInstance", 0, "", "", options)
	if err := registered.Store(&path, &cgroup); err != nil {
		return "", err
	}
	if vm.qemu == nil {
		vm.qemu, vm.qemuFD = start(append(vm.command, "-S", "-qmp", "unix:"+vm.socket+",server=on,wait=off")...)
		go reap(vm.qemu.Pid)
	}
	instance := bus.Object(name, path)
	attached := instance.Call(name+".Instance.AttachVcpus", 0, vm.qemuFD, vcpusOf(vm.socket), map[string]dbus.Variant{})
	if attached.Err != nil {
		return "", attached.Err
	}
	err = instance.StoreProperty(name+".Instance.State", &state)
	return state, err
}

// check is for calls that also fail if QEMU has ended. reap then ends the program with QEMU's exit code within this second.
func (vm *VM) check(what string, err error) {
	if err != nil && vm.qemu != nil {
		time.Sleep(time.Second)
	}
	check(what, err)
}

// pause is the time after which the steps are repeated, this long after the first failure; 0: they are not.
func (vm *VM) pause(err error, age time.Duration) time.Duration {
	var refused dbus.Error
	kind := "connection"
	if errors.As(err, &refused) {
		kind = refused.Name[strings.LastIndex(refused.Name, ".")+1:]
	}
	switch {
	case kind == "CpusetConflict" && vm.qemu != nil:
		return 5 * time.Second
	case kind == "UnknownObject" && age < 2*time.Second:
		return 200 * time.Millisecond
	case (kind == "connection" || kind == "Busy" || kind == "KubeletStateUnusable") && age < time.Minute:
		return time.Second
	}
	return 0
}

func main() {
	vm := VM{daemon: os.Getenv("STELIA_SOCKET"), socket: os.Args[1], command: os.Args[2:]}
	if vm.daemon == "" {
		vm.daemon = "/run/stelia/runner/socket"
	}
	signals := make(chan os.Signal, 1) // PID 1 gets no signal without a handler
	signal.Notify(signals, syscall.SIGTERM)
	var running atomic.Bool
	go func() {
		<-signals
		if !running.Load() {
			end(128 + int(syscall.SIGTERM))
		}
		time.AfterFunc(grace, func() { vm.qemu.Kill() })
		if err := qmp(vm.socket, &struct{}{}, "system_powerdown"); err != nil {
			fmt.Fprintln(os.Stderr, "power down:", err)
		}
	}()

	_, vm.anchorFD = start("sleep", "infinity")
	var failing time.Time
	state, err := vm.isolate()
	for ; err != nil; state, err = vm.isolate() {
		if failing.IsZero() {
			failing = time.Now()
		}
		pause := vm.pause(err, time.Since(failing))
		if pause == 0 {
			vm.check("isolate", err)
		}
		if pause == 5*time.Second {
			failing = time.Time{} // this lasts as long as the other pod does
		}
		fmt.Fprintf(os.Stderr, "%s; repeated after %s\n", text(err), pause)
		time.Sleep(pause)
	}
	if state != "isolated" && state != "pinned" {
		check("isolate", fmt.Errorf("the VM is %s", state))
	}
	vm.check("start the guest", qmp(vm.socket, &struct{}{}, "cont"))
	running.Store(true)
	fmt.Fprintf(os.Stderr, "guest running, %s\n", state)
	select {} // until QEMU ends
}
