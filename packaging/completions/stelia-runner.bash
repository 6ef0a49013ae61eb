_stelia__runner() {
    local i cur prev opts cmd
    COMPREPLY=()
    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
        cur="$2"
    else
        cur="${COMP_WORDS[COMP_CWORD]}"
    fi
    prev="$3"
    cmd=""
    opts=""

    for i in "${COMP_WORDS[@]:0:COMP_CWORD}"
    do
        case "${cmd},${i}" in
            ",$1")
                cmd="stelia__runner"
                ;;
            stelia__runner,anchor)
                cmd="stelia__runner__subcmd__anchor"
                ;;
            stelia__runner,attach)
                cmd="stelia__runner__subcmd__attach"
                ;;
            stelia__runner,help)
                cmd="stelia__runner__subcmd__help"
                ;;
            stelia__runner,install)
                cmd="stelia__runner__subcmd__install"
                ;;
            stelia__runner,probe)
                cmd="stelia__runner__subcmd__probe"
                ;;
            stelia__runner,run)
                cmd="stelia__runner__subcmd__run"
                ;;
            stelia__runner,stop)
                cmd="stelia__runner__subcmd__stop"
                ;;
            stelia__runner__subcmd__help,anchor)
                cmd="stelia__runner__subcmd__help__subcmd__anchor"
                ;;
            stelia__runner__subcmd__help,attach)
                cmd="stelia__runner__subcmd__help__subcmd__attach"
                ;;
            stelia__runner__subcmd__help,help)
                cmd="stelia__runner__subcmd__help__subcmd__help"
                ;;
            stelia__runner__subcmd__help,install)
                cmd="stelia__runner__subcmd__help__subcmd__install"
                ;;
            stelia__runner__subcmd__help,probe)
                cmd="stelia__runner__subcmd__help__subcmd__probe"
                ;;
            stelia__runner__subcmd__help,run)
                cmd="stelia__runner__subcmd__help__subcmd__run"
                ;;
            stelia__runner__subcmd__help,stop)
                cmd="stelia__runner__subcmd__help__subcmd__stop"
                ;;
            *)
                ;;
        esac
    done

    case "${cmd}" in
        stelia__runner)
            opts="-h -V --log-format --help --version run attach probe stop install anchor help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 1 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --log-format)
                    COMPREPLY=($(compgen -W "text json" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        stelia__subcmd__runner__subcmd__anchor)
            opts="-h --parent --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --parent)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        stelia__subcmd__runner__subcmd__attach)
            opts="-h --qmp --pid --socket --require-isolation --iothread-cpus --resize --resize-memory --memory-limit --guest-agent --grace --register-timeout --state-dir --pod-uid --cpuset --latency --cache-class --qos --cpus --cpu-bind-policy --required-cpu-bind-policy --cpu-limit --cpu-exclusive-policy --numa-allocate-strategy --numa-topology-alignment-policy --resource-spec --resource-status --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --qmp)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --pid)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --socket)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --require-isolation)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --iothread-cpus)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --resize)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --resize-memory)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --memory-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --guest-agent)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --grace)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --register-timeout)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --state-dir)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --pod-uid)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cpuset)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --latency)
                    COMPREPLY=($(compgen -W "default low polling" -- "${cur}"))
                    return 0
                    ;;
                --cache-class)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --qos)
                    COMPREPLY=($(compgen -W "LSE LSR LS BE" -- "${cur}"))
                    return 0
                    ;;
                --cpus)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cpu-bind-policy)
                    COMPREPLY=($(compgen -W "Default FullPCPUs SpreadByPCPUs ConstrainedBurst" -- "${cur}"))
                    return 0
                    ;;
                --required-cpu-bind-policy)
                    COMPREPLY=($(compgen -W "Default FullPCPUs SpreadByPCPUs ConstrainedBurst" -- "${cur}"))
                    return 0
                    ;;
                --cpu-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cpu-exclusive-policy)
                    COMPREPLY=($(compgen -W "Default None PCPULevel NUMANodeLevel" -- "${cur}"))
                    return 0
                    ;;
                --numa-allocate-strategy)
                    COMPREPLY=($(compgen -W "MostAllocated LeastAllocated DistributeEvenly" -- "${cur}"))
                    return 0
                    ;;
                --numa-topology-alignment-policy)
                    COMPREPLY=($(compgen -W "None BestEffort Restricted SingleNUMANode" -- "${cur}"))
                    return 0
                    ;;
                --resource-spec)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --resource-status)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        stelia__subcmd__runner__subcmd__help)
            opts="run attach probe stop install anchor help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        stelia__subcmd__runner__subcmd__help__subcmd__anchor)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        stelia__subcmd__runner__subcmd__help__subcmd__attach)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        stelia__subcmd__runner__subcmd__help__subcmd__help)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        stelia__subcmd__runner__subcmd__help__subcmd__install)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        stelia__subcmd__runner__subcmd__help__subcmd__probe)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        stelia__subcmd__runner__subcmd__help__subcmd__run)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        stelia__subcmd__runner__subcmd__help__subcmd__stop)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        stelia__subcmd__runner__subcmd__install)
            opts="-h --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --log-format)
                    COMPREPLY=($(compgen -W "text json" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        stelia__subcmd__runner__subcmd__probe)
            opts="-h --state-dir --qmp --api-socket --log-format --help readiness liveness state"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --state-dir)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --qmp)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --api-socket)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        stelia__subcmd__runner__subcmd__run)
            opts="-h --qmp --api-socket --vmm --fd --helper --helpers --socket --require-isolation --iothread-cpus --resize --resize-memory --memory-limit --guest-agent --grace --register-timeout --state-dir --pod-uid --cpuset --latency --cache-class --qos --cpus --cpu-bind-policy --required-cpu-bind-policy --cpu-limit --cpu-exclusive-policy --numa-allocate-strategy --numa-topology-alignment-policy --resource-spec --resource-status --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --qmp)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --api-socket)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --vmm)
                    COMPREPLY=($(compgen -W "qemu cloud-hypervisor firecracker" -- "${cur}"))
                    return 0
                    ;;
                --fd)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --helper)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --helpers)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --socket)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --require-isolation)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --iothread-cpus)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --resize)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --resize-memory)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --memory-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --guest-agent)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --grace)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --register-timeout)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --state-dir)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --pod-uid)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cpuset)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --latency)
                    COMPREPLY=($(compgen -W "default low polling" -- "${cur}"))
                    return 0
                    ;;
                --cache-class)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --qos)
                    COMPREPLY=($(compgen -W "LSE LSR LS BE" -- "${cur}"))
                    return 0
                    ;;
                --cpus)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cpu-bind-policy)
                    COMPREPLY=($(compgen -W "Default FullPCPUs SpreadByPCPUs ConstrainedBurst" -- "${cur}"))
                    return 0
                    ;;
                --required-cpu-bind-policy)
                    COMPREPLY=($(compgen -W "Default FullPCPUs SpreadByPCPUs ConstrainedBurst" -- "${cur}"))
                    return 0
                    ;;
                --cpu-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cpu-exclusive-policy)
                    COMPREPLY=($(compgen -W "Default None PCPULevel NUMANodeLevel" -- "${cur}"))
                    return 0
                    ;;
                --numa-allocate-strategy)
                    COMPREPLY=($(compgen -W "MostAllocated LeastAllocated DistributeEvenly" -- "${cur}"))
                    return 0
                    ;;
                --numa-topology-alignment-policy)
                    COMPREPLY=($(compgen -W "None BestEffort Restricted SingleNUMANode" -- "${cur}"))
                    return 0
                    ;;
                --resource-spec)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --resource-status)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        stelia__subcmd__runner__subcmd__stop)
            opts="-h --state-dir --qmp --api-socket --log-format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --state-dir)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --qmp)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --api-socket)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
    esac
}

if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -F _stelia__runner -o nosort -o bashdefault -o default stelia-runner
else
    complete -F _stelia__runner -o bashdefault -o default stelia-runner
fi
