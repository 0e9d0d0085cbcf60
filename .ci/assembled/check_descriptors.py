exec(open('/tmp/sassrun4.py').read().split("verbose=len(sys.argv)<2")[0])
import tempfile
PT={"12.8":"/tmp/t36/triton/backends/nvidia/bin/ptxas","12.9":"/tmp/t36/triton/backends/nvidia/bin/ptxas-blackwell"}
def descs(ex, which):
    got.clear(); make(*ex); out=[]
    for kernel,args,constants,options in got:
        names=kernel.arg_names; given={n:typ(a) for n,a in zip(names,args)}; given.update(constants)
        c=kc.compile_kernel(kernel,given,90,options["num_warps"],options["num_stages"],maxnreg=options.get("maxnreg"))
        open('/tmp/k.ptx','w').write(c.asm['ptx'])
        cmd=[PT[which],"-lineinfo","-v","--gpu-name=sm_90a","/tmp/k.ptx","-o","/tmp/k.cubin"]
        subprocess.run(cmd,capture_output=True,check=True)
        text=subprocess.run(['/tmp/t36/triton/backends/nvidia/bin/nvdisasm','/tmp/k.cubin'],capture_output=True,text=True).stdout
        code,labels=sassemu.parse(text)
        params=[];ranges=[]
        for a in flat(tuple(args)):
            if isinstance(a,torch.Tensor): base=(len(ranges)+1)<<40; ranges.append(base); params.append(base)
            elif isinstance(a,float): params.append(None)
            else: params.append(a)
        off=0x210; sp=[]
        for a,v in zip(flat(tuple(args))+[None]*2,params+[None]*2):
            size=8 if isinstance(a,torch.Tensor) or a is None else 4
            off=-(-off//size)*size; sp.append((off,size,v)); off+=size
        bad={}
        for p in range(grid_of(kernel,args,constants)):
            try: s=sassemu.run(code,labels,sp,p,32*options["num_warps"],lambda *a:None,c.metadata.shared)
            except sassemu.Bad as e: bad[("EMU",str(e)[:100])]=bad.get(("EMU",str(e)[:100]),0)+1; continue
            for (at,u,ds) in s.get("wg",()):
                for d in ds:
                    if d is None: bad[("unknown",at)]=bad.get(("unknown",at),0)+1
                    elif d[0]<0 or d[0]+1024>c.metadata.shared+3072*0 or d[3]==0 or d[2] not in (256,512,1024,2048,4096) : bad.setdefault((at,d),[]).append(p)
        out.append((kernel.__name__,c.metadata.shared,bad))
    return out
if __name__=="__main__":
    ex=((202,153),20,(4,2),('every second','every second','one row for all','plain'),'prefix',(2,-2),True,-1.0,True,True,'bfloat16')
    for w in PT:
        for name,sh,bad in descs(ex,w): print(w,name,"shared",sh,"bad descriptors:",bad)
